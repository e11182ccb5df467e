"""Tensor expressions in TVM's spelling; `tilewright.te` is the public face."""
