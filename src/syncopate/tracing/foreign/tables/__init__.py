"""Tables: spans of any source, as rows."""
