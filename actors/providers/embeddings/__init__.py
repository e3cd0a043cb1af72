"""Client of OpenAI's embeddings, which many providers and servers implement."""
