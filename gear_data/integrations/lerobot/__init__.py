"""LeRobot: a dataset that its training script takes in place of `LeRobotDataset`.

Train a policy with the arguments of `lerobot-train`:

    python -m gear_data.integrations.lerobot train --dataset.repo_id=USER/NAME --policy.type=act ...

Or in a script, before LeRobot makes its dataset:

    gear_data.integrations.lerobot.use_gear_data()
"""

from gear_data.integrations.lerobot.dataset import LeRobotDataset, use_gear_data

__all__ = ["LeRobotDataset", "use_gear_data"]
