"""What a person is shown, made from values: no I/O, no clock but an argument."""
