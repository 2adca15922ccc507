"""What runs inside of boxes, in their own interpreter: see :mod:`sandboxes.inside.main`."""
