"""Bytes that nobody should send, for everything of fencepost that reads bytes: ``make fuzz``.

A case is a number: the seed of all that is drawn for it. ``case(seed)`` raises if it found something; the command then
prints how to repeat that case alone. Targets that read one piece of bytes have ``check(data)`` too, which
``make fuzz ARGS=--guided`` gives to atheris, a fuzzer that looks for bytes which reach code not reached before.
"""
