"""One GGUF file is all that workers, frontend and gateway need: weights, properties, tokenizer, chat template."""
import io
import json
import pathlib
import zipfile

import conftest
import grpc
import openai
import pytest
from smg_grpc_proto.generated import common_pb2, sglang_scheduler_pb2_grpc



@pytest.fixture(scope="module")
def gguf(tmp_path_factory, model) -> pathlib.Path:
    path = tmp_path_factory.mktemp("gguf") / "demo-q8_0.gguf"
    conftest.run_tool("demo_model_gguf.py", "--model", model, "--type", "Q8_0", "--output", path)
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory, build_dir, gguf):
    installation = conftest.Installation(tmp_path_factory.mktemp("served"), build_dir, gguf)
    yield installation
    installation.stack.stop()


def tokenizer_files(address: str) -> dict:
    with grpc.insecure_channel(address) as channel:
        chunks = list(sglang_scheduler_pb2_grpc.SglangSchedulerStub(channel).GetTokenizer(common_pb2.GetTokenizerRequest()))
    archive = zipfile.ZipFile(io.BytesIO(b"".join(chunk.data for chunk in chunks)))
    return {name: json.loads(archive.read(name)) for name in archive.namelist()}


def test_tokenizer_is_the_one_that_was_published(served, model):
    files = tokenizer_files(served.address)
    assert files["tokenizer.json"]["pre_tokenizer"]["pretokenizers"][0]["type"] == "Digits"
    wanted = json.loads((model / "tokenizer.json").read_text())
    assert files["tokenizer.json"] == wanted
    config = json.loads((model / "tokenizer_config.json").read_text())
    for key in ("chat_template", "bos_token", "eos_token", "pad_token", "unk_token", "added_tokens_decoder"):
        assert files["tokenizer_config.json"][key] == config[key], key


def test_gateway_fetches_the_tokenizer_and_answers(served, smg):
    front = conftest.Front(served, smg("gateway"))
    status, answer = openai.post(front.url, "/v1/chat/completions", openai.FRANCE)
    assert status == 200, answer
    assert "Paris" in answer["choices"][0]["message"]["content"]


# Padded, so that every row is cut into blocks of 256 (docs/numerics.md says what the mixes are). Such experts cannot be cut into slices.
@pytest.mark.parametrize("form", ["Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS"])
def test_k_quants_answer(install, smg, tmp_path, model, form):
    path = tmp_path / "demo.gguf"
    conftest.run_tool("demo_model_gguf.py", "--model", model, "--type", form, "--pad", "--output", path)
    front = conftest.Front(install(model=path, shards=("--experts=0-4", "--experts=5-15")), smg("gateway"))
    status, answer = openai.post(front.url, "/v1/chat/completions", openai.FRANCE)
    assert status == 200, answer
    text = answer["choices"][0]["message"]["content"]
    print(f"{form}: {text}")
    assert "Paris" in text
