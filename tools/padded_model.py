"""The demo model with sizes that are multiples of 256, for block types that need it: zeros are added, and no result changes.

Hidden 576 -> 768, heads 9 of 3 -> 12 of 4, routed experts 128 -> 256 wide. The added dims of the hidden state stay zero, because every row
that writes them is zero; added heads and expert columns have zero weights behind them. RMSNorm divides by more dims, which its
weights and its epsilon take back: x / sqrt(s/768 + e*576/768) * (w*sqrt(576/768)) = x / sqrt(s/576 + e) * w.
"""
import numpy as np

from checkpoint_folder import CheckpointFolder

WIDER = {576: 768, 192: 256, 128: 256}  # of any dimension of a tensor; no other size of the model is among them


class PaddedModel:
    """Reads like a CheckpointFolder."""

    def __init__(self, folder):
        self._model = CheckpointFolder(folder)
        old = self._model.config
        if (old["hidden_size"], old["num_key_value_heads"], old["moe_intermediate_size"]) != (576, 3, 128):
            raise SystemExit("error: only the model that tools/demo_model makes can be padded")
        self._shrink = 576 / WIDER[576]
        self.config = old | {
            "hidden_size": WIDER[576], "num_attention_heads": 12, "num_key_value_heads": 4,
            "moe_intermediate_size": WIDER[128], "n_shared_experts": old["n_shared_experts"] * 128 // WIDER[128],
            "rms_norm_eps": old["rms_norm_eps"] * self._shrink,
        }

    def names(self):
        return self._model.names()

    def read(self, name: str) -> np.ndarray:
        values = self._model.read(name)
        if name.endswith("norm.weight"):
            values = values * np.float32(np.sqrt(self._shrink))
        return np.pad(values, [(0, WIDER.get(size, size) - size) for size in values.shape])
