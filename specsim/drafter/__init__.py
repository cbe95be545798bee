"""The bundled drafter runner: real confidence traces from real speculative decoding.

Everything here needs the extra `drafter` (torch, safetensors, gguf, tokenizers); torch is
imported when one of these modules is, so nothing else in specsim may import them at its top.
"""
