package slotlog

import "bytes"

// failureOf finds our word for the server's, which may quote a request.
func failureOf(words []byte) Failure {
	for _, f := range failures {
		if bytes.Contains(words, []byte(f.words)) {
			return f.is
		}
	}
	return FailureOther
}

var failures = []struct {
	words string
	is    Failure
}{
	{"exceeds the available context size", FailureContext},
	{"Context size has been exceeded", FailureContext},
	{"larger than the max context size", FailureContext},
	{"KV cache is full", FailureCache},
	{"free space in the KV cache", FailureCache},
	{"mtmd", FailureMedia},
	{"image", FailureMedia},
	{"audio", FailureMedia},
	{"decode", FailureDecode},
	{"Decode", FailureDecode},
	{"Compute error", FailureDecode},
	{"failed to load", FailureLoad},
	{"loading error", FailureLoad},
}

// backendFailure knows the lines of a server that fails at a batch or at its start.
func backendFailure(msg []byte) (f Failure, ok bool) {
	if len(msg) == 0 {
		return "", false
	}
	switch msg[0] {
	case 'f':
		return failedTo(msg)
	case 'd', 'p':
		if hasPrefix(msg, "decode() failed: ") || hasPrefix(msg, "pre_decode() failed: ") || hasPrefix(msg, "post_decode() failed: ") {
			if f = failureOf(msg[bytes.IndexByte(msg, ':'):]); f == FailureOther {
				f = FailureDecode
			}
			return f, true
		}
	case 'e':
		return FailureLoad, hasPrefix(msg, "exiting due to model loading error")
	}
	return "", false
}

func failedTo(msg []byte) (f Failure, ok bool) {
	switch {
	case hasPrefix(msg, "failed to find free space in the KV cache"):
		return FailureCache, true
	case hasPrefix(msg, "failed to decode the batch"):
		if bytes.Contains(msg, []byte("KV cache is full")) {
			return FailureCache, true
		}
		return FailureDecode, true
	case hasPrefix(msg, "failed to load model"), hasPrefix(msg, "failed to load draft model"),
		hasPrefix(msg, "failed to load multimodal model"), hasPrefix(msg, "failed to create_context with model"):
		return FailureLoad, true
	}
	return "", false
}
