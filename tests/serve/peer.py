"""The server that ours is measured beside: FastAPI, uvicorn and ONNX Runtime, written as their
documentation does. They are installed by hand for a measurement:

    pip install fastapi 'uvicorn[standard]' onnxruntime
    python -m tests.serve.peer model.onnx PORT
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np


def main(model: str, port: int) -> None:
    import onnxruntime
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from pydantic import BaseModel

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_outputs()]
    app = FastAPI()

    class Inputs(BaseModel):
        inputs: dict[str, Any]

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    def run(given: Inputs) -> dict[str, Any]:
        feed = {name: np.asarray(x, np.float32) for name, x in given.inputs.items()}
        outputs: Any = session.run(None, feed)
        return {"outputs": {name: y.tolist() for name, y in zip(names, outputs)}}

    # The annotations of this file are texts, which FastAPI could not look up in a function.
    run.__annotations__ = {"given": Inputs, "return": dict[str, Any]}
    app.post("/v1/run")(run)

    async def run_raw(request: Request) -> Response:
        """The same tensors as bytes: a header's length, the header, the data."""
        body = await request.body()
        start = 8 + int.from_bytes(body[:8], "little")
        feed = {
            name: np.frombuffer(body[start:], np.float32).reshape(about["shape"])
            for name, about in json.loads(body[8:start]).items()
        }
        outputs: Any = session.run(None, feed)
        return Response(outputs[0].tobytes(), media_type="application/octet-stream")

    run_raw.__annotations__ = {"request": Request, "return": Response}
    app.post("/v1/raw")(run_raw)
    uvicorn.run(app, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
