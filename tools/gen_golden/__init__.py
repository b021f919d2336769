"""Makes the golden results of tests/golden with Hugging Face Transformers in fp32."""
