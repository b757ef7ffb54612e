# SPDX-License-Identifier: Apache-2.0
"""From a tree of values to a configuration type, every mistake told with its place."""

from pipecd.config.decode.decoder import Decoder, Level, decode_plain
from pipecd.config.decode.explain import unknown_word
from pipecd.config.decode.shaping import entry_of

__all__ = ["Decoder", "Level", "decode_plain", "entry_of", "unknown_word"]
