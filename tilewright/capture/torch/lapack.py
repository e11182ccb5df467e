"""Operators that torch computes by LAPACK: dense factorisations, and what is solved with them.

A native program calls the library for these, by name: blocked algorithms that were tuned for
decades are no fallback from something better. The list is fixed. Each operator in it does nothing
but check its operands, copy them to columns and call the routines.
"""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

LAPACK = "LAPACK"
# The routines by operator, without the letter of the dtype.
ROUTINES = {
    "linalg_lu_factor_ex": "getrf",
    "linalg_lu": "getrf",
    "linalg_lu_solve": "getrs",
    "linalg_inv_ex": "getrf and getri",
    "_linalg_solve_ex": "getrf and getrs",
    "_linalg_det": "getrf",
    "_linalg_slogdet": "getrf",
    "linalg_solve_triangular": "trtrs",
    "triangular_solve": "trtrs",
    "linalg_cholesky_ex": "potrf",
    "cholesky": "potrf",
    "cholesky_solve": "potrs",
    "cholesky_inverse": "potri",
    "linalg_ldl_factor_ex": "sytrf",
    "linalg_ldl_solve": "sytrs",
    "geqrf": "geqrf",
    "linalg_qr": "geqrf and orgqr",
    "linalg_householder_product": "orgqr",
    "ormqr": "ormqr",
    "_linalg_svd": "gesdd",
    "_linalg_eigh": "syevd",
    "linalg_eig": "geev",
    "_linalg_eigvals": "geev",
    "linalg_eigvals": "geev",
    "linalg_lstsq": "gelsy, gels, gelsd or gelss",
}


def routines(target: Any) -> str:
    """The library's routines that an operator calls on processors; "" for one of another kind."""
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return ""
    found = ROUTINES.get(target.overloadpacket.__name__)
    return f"{LAPACK} {found}" if found and target._overloadname == "default" else ""
