"""Executes what TileLang lowers a kernel to: the device module, thread by thread, on the CPU."""
