"""Tables: spans that anybody wrote as rows."""
