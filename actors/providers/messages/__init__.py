"""Provider of the Messages API: client, responses, errors, headers, batches."""
