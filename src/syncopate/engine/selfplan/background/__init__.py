"""Background: what rank 0 has computed in a process of its own while the training goes on.

``process`` starts that process. ``sampling`` makes the plans of held steps, and curves of what they
took; ``proposals`` makes the plans that compete. Neither needs torch.
"""
