"""What the commands share: console, groups of options, completion, and how ranks are started."""
