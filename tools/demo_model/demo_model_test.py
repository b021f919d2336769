"""Unit tests of the conversion; they need neither the GGUF file nor the network."""

import json
import tempfile
import unittest
from pathlib import Path

import numpy as np

from demo_model import checkpoint, experts, metadata, selftest
from demo_model.bfloat16 import round_to_bfloat16, to_float32
from demo_model.errors import DemoModelError
from demo_model.safetensors_writer import ShardedWriter, write_safetensors
from demo_model.source import SourceTokenizer, to_half_split, verify_gguf

_HIDDEN = 48


def _dense_layer(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    width = experts.SLICE_WIDTH * (experts.NUM_SHARED_SLICES + experts.NUM_PAIRS)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return round_to_bfloat16(generator.normal(0, 0.1, (rows, columns)).astype(np.float32))

    return {
        "input_layernorm.weight": matrix(1, _HIDDEN)[0],
        "mlp.gate_proj.weight": matrix(width, _HIDDEN),
        "mlp.up_proj.weight": matrix(width, _HIDDEN),
        "mlp.down_proj.weight": matrix(_HIDDEN, width),
    }


class BFloat16Test(unittest.TestCase):
    def test_rounds_to_nearest_ties_to_even(self):
        # 1 + 2^-8 lies midway between 0x3F80 and 0x3F81; 1 + 3 * 2^-8 between 0x3F81 and 0x3F82.
        values = np.array([1, 1 + 2**-8, 1 + 2**-8 + 2**-16, 1 + 3 * 2**-8, -1 - 2**-8, 0], dtype=np.float32)
        self.assertEqual(
            round_to_bfloat16(values).tolist(), [0x3F80, 0x3F80, 0x3F81, 0x3F82, 0xBF80, 0]
        )


class HalfSplitTest(unittest.TestCase):
    def test_moves_interleaved_pairs_half_a_head_apart(self):
        # One column; the value says which row it was: head * 100 + pair * 10 + member.
        interleaved = [h * 100 + i * 10 + m for h in range(2) for i in range(3) for m in range(2)]
        expected = [h * 100 + i * 10 + m for h in range(2) for m in range(2) for i in range(3)]
        self.assertEqual(to_half_split(np.array(interleaved)[:, None], 2)[:, 0].tolist(), expected)


class SplitIntoExpertsTest(unittest.TestCase):
    def setUp(self):
        self.dense = _dense_layer(3)
        self.split = {
            name: value if value.dtype == np.float32 else to_float32(value)
            for name, value in experts.split_into_experts(self.dense, layer=1).items()
        }

    def test_keeps_what_is_not_the_mlp(self):
        self.assertIn("input_layernorm.weight", self.split)
        self.assertNotIn("mlp.gate_proj.weight", self.split)

    def test_computes_the_dense_function(self):
        rows = np.random.default_rng(4).standard_normal((20, _HIDDEN), dtype=np.float32)
        dense = selftest.swiglu(rows, *(to_float32(self.dense[f"mlp.{m}_proj.weight"]) for m in ("gate", "up", "down")))
        chosen, weights = selftest.route(rows, self.split["mlp.gate.weight"])
        total = selftest.swiglu(rows, *self._expert("shared_experts"))
        for token in range(len(rows)):
            for expert, weight in zip(chosen[token], weights[token]):
                row = rows[token : token + 1]
                total[token] += weight * selftest.swiglu(row, *self._expert(f"experts.{expert}"))[0]
        # Weights are off 1 by up to the largest router logit.
        bound = np.abs(rows @ self.split["mlp.gate.weight"].T).max()
        self.assertLess(np.linalg.norm(total - dense) / np.linalg.norm(dense), bound)

    def test_chooses_one_copy_of_every_pair(self):
        rows = np.random.default_rng(5).standard_normal((100, _HIDDEN), dtype=np.float32)
        chosen, _ = selftest.route(rows, self.split["mlp.gate.weight"])
        pairs = np.sort(chosen % experts.NUM_PAIRS, axis=1)
        np.testing.assert_array_equal(pairs, np.tile(np.arange(experts.NUM_PAIRS), (100, 1)))
        self.assertGreater(len(np.unique(np.sort(chosen, axis=1), axis=0)), 20)

    def test_router_differs_between_layers_and_not_between_runs(self):
        np.testing.assert_array_equal(experts.router_rows(1, _HIDDEN), experts.router_rows(1, _HIDDEN))
        self.assertFalse(np.array_equal(experts.router_rows(1, _HIDDEN), experts.router_rows(2, _HIDDEN)))

    def _expert(self, name: str) -> list[np.ndarray]:
        return [self.split[f"mlp.{name}.{m}_proj.weight"] for m in ("gate", "up", "down")]


class TokenizerTest(unittest.TestCase):
    """A vocabulary small enough to merge by hand."""

    def setUp(self):
        from tokenizers import Tokenizer

        tokens = ["<|endoftext|>", "<|im_end|>", "a", "b", "1", "2", "Ġ", "ab", "Ġab", "12"]
        source = SourceTokenizer(tokens, [0, 1], ["a b", "Ġ ab", "1 2"], 1, 1, 0, 1, "template")
        self.json = metadata.tokenizer_json(source)
        self.tokenizer = Tokenizer.from_str(json.dumps(self.json))

    def test_merges_within_words_and_keeps_the_space(self):
        self.assertEqual(self.tokenizer.encode("ab ab").tokens, ["ab", "Ġab"])

    def test_never_merges_digits_although_the_vocabulary_could(self):
        self.assertEqual(self.tokenizer.encode("ab12").tokens, ["ab", "1", "2"])

    def test_special_tokens_are_recognised_in_text(self):
        self.assertEqual(self.tokenizer.encode("a<|im_end|>b").ids, [2, 1, 3])

    def test_bytes_without_a_token_are_dropped(self):
        self.assertEqual(self.tokenizer.encode("aza").tokens, ["a", "a"])


class SafetensorsWriterTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.path = Path(self._folder.name)

    def test_the_reference_reader_reads_what_was_written(self):
        from safetensors import deserialize

        half = np.arange(3, dtype=np.uint16)  # 6 bytes: would misalign what follows
        full = np.arange(6, dtype=np.float32).reshape(2, 3)
        write_safetensors(self.path / "x", [("half", half), ("full", full)])
        written = (self.path / "x").read_bytes()
        self.assertEqual(written.index(full.tobytes()) % 4, 0)
        entries = dict(deserialize(written))
        self.assertEqual((entries["full"]["dtype"], entries["full"]["shape"]), ("F32", [2, 3]))
        self.assertEqual(bytes(entries["full"]["data"]), full.tobytes())
        self.assertEqual((entries["half"]["dtype"], bytes(entries["half"]["data"])), ("BF16", half.tobytes()))

    def test_shards_are_balanced_and_indexed(self):
        writer = ShardedWriter(self.path, 2, total_bytes=800)
        for i in range(8):
            writer.add(f"t{i}", np.zeros(50, dtype=np.uint16))
        writer.finish()
        index = json.loads((self.path / "model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"]["total_size"], 800)
        files = list(index["weight_map"].values())
        self.assertEqual([files.count(f"model-0000{i}-of-00002.safetensors") for i in (1, 2)], [4, 4])


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)

    def test_a_folder_with_other_files_is_not_replaced(self):
        (self.path / "thesis.tex").write_text("x")
        with self.assertRaisesRegex(DemoModelError, "holds other files"):
            checkpoint.make(self.path)

    def test_a_wrong_gguf_is_refused_by_its_digest(self):
        (self.path / "x.gguf").write_bytes(b"GGUF")
        with self.assertRaisesRegex(DemoModelError, "expected b179c9523d0e6a0f"):
            verify_gguf(self.path / "x.gguf")

    def test_complete_means_every_byte(self):
        (self.path / "config.json").write_text("{}")
        checkpoint._write_manifest(self.path)
        self.assertTrue(checkpoint.is_complete(self.path))
        (self.path / "config.json").write_text("[]")
        self.assertFalse(checkpoint.is_complete(self.path))
        (self.path / "config.json").unlink()
        self.assertFalse(checkpoint.is_complete(self.path))


if __name__ == "__main__":
    unittest.main()
