"""What the commands share: the console, groups of options, and how ranks are started."""
