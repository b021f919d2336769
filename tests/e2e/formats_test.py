"""Checkpoints that are published quantised, the experts alone or all layers, through workers, frontend and gateway."""
import conftest
import openai
import pytest

# The first token of the question about France is a near-tie that FP8 tips over; this one's is not.
QUESTION = [{"role": "user", "content": "Who wrote Romeo and Juliet?"}]
# FP8 blocks keep all 128 intermediate columns of an expert together, so experts are split, not cut.
SHARDS = ("--experts=0-4", "--experts=5-15")


@pytest.mark.parametrize("form, dense", [("fp8_block", "plain"), ("fp8_channel", "plain"), ("int4", "plain"), ("gptq", "plain"),
                                         ("fp8_block", "quantised"), ("int4", "quantised")])
def test_quantised_checkpoint_answers_sensibly(install, smg, tmp_path, model, form, dense):
    folder = tmp_path / "model"
    conftest.run_tool("demo_model_quantised.py", "--model", model, "--format", form, "--dense", dense, "--output", folder)
    front = conftest.Front(install(model=folder, shards=SHARDS), smg("gateway"))
    status, answer = openai.post(front.url, "/v1/chat/completions", {**openai.FRANCE, "messages": QUESTION})
    assert status == 200, answer
    text = answer["choices"][0]["message"]["content"]
    print(f"{form}, the rest {dense}: {text}")
    assert "Shakespeare" in text
