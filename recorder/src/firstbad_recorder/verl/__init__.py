"""Records verl's PPO trainers: `VERL_USE_EXTERNAL_MODULES=firstbad_recorder.verl`, no more.

verl imports this module in every process, while its own package is still being imported. So it
only leaves word which modules are waited for; methods of their classes are wrapped when these have
been imported. Where verl is not there, nothing happens.
"""

from firstbad_recorder.verl import attach

attach.install()
