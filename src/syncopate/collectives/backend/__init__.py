"""Backend: torch's own groups as this package uses them: called, waited for, their collectives."""
