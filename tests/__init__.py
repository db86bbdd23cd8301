"""What is promised, tried on the real engines."""

from hypothesis import settings

# laws are about answers; how long one example takes depends on what else the machine does
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
