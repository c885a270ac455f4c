"""What a page shows, made from the objects that its visitor may read: no I/O, no clock but an argument."""
