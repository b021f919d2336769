"""What a golden file says of its making."""

import datetime
import platform


def provenance(command: str) -> dict:
    import numpy
    import tokenizers
    import torch
    import transformers

    return {
        "made_by": command,
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": numpy.__version__,
        "compute": "fp32 on CPU, weights bfloat16, eager attention and experts",
    }
