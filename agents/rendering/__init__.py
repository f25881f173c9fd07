"""Renderers turn messages into the token ids of one model."""

from envhub.agents.rendering.base import Continuation, Renderer
from envhub.agents.rendering.bytes import ByteRenderer
from envhub.agents.rendering.chat_template import ChatTemplateRenderer, load_renderer
from envhub.agents.rendering.proof import TemplateProof

__all__ = ["ByteRenderer", "ChatTemplateRenderer", "Continuation", "Renderer", "TemplateProof", "load_renderer"]
