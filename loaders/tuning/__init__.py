"""Tuning: arguments with which a loader keeps up with training on this machine.

`tune` measures settings. A `Setting` (`setting`) has only arguments that leave the batches as they are. `space` lists
the settings of this machine, `trial` measures one, `training_step` is the step, `search` decides which settings are
measured, and `report` shows the result. `config_file` writes and reads loader.json.
"""
