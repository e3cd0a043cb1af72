"""Provider of OpenAI's Responses API: client, requests, responses, streams."""
