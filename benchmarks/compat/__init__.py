"""llama.cpp's own tests of its server, run from an unpacked source archive against llama-server and `lacli serve`."""
