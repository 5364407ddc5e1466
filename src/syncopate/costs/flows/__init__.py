"""Flows: schedules played on a network whose links are shared fairly at every moment."""
