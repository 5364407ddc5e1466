"""Validation: predictions held against measurements that no calibration saw."""
