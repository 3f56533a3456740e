"""The model's maths, once: spec, tensor names, rotary tables, decoder."""
