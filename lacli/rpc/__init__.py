"""llama.cpp's RPC: devices of other machines, and this machine's devices for others.

ggml has the protocol and both ends of it; a process that uses such a device aborts when the server goes away. So
`addresses` looks first whether somebody is there, `asking` lists devices from a process of its own (`listing`), and
`library` is what ggml does, for processes that may die. `server` is the other end.
"""

from lacli.rpc.addresses import check_endpoints
from lacli.rpc.asking import found
from lacli.rpc.library import need_support, register, supported

__all__ = ["check_endpoints", "found", "need_support", "register", "supported"]
