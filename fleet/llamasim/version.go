package llamasim

import "fmt"

// Version is a llama-server to look like. The log is that of V040 whatever the version.
type Version string

// The versions, by the differences a client can meet (sections 2.2 and 8).
const (
	// V040 is v0.4.0 of September 2026, which the captures are of: it continues
	// content and reasoning on demand, repeats what it continued unasked, and fits
	// a schema to what is there already. The default.
	V040 Version = "v0.4.0"

	// VFeb26 is of February 2026. It continues the content of a trailing assistant
	// message, always, without repeating it, and not with a template that thinks; a
	// schema begins anew there. It has no resumable streams and no pings, and sends
	// the headers of a stream with its first token.
	VFeb26 Version = "feb26"

	// VFeb25 is of February 2025. It continues nothing: a trailing assistant message
	// is a turn that is over. Errors of a stream are lines of their own kind, and so
	// is even the first, with status 200. There are no /slots, no Responses and
	// Messages, and cache figures nowhere.
	VFeb25 Version = "feb25"
)

// features are the differences between versions.
type features struct {
	explicitContinue bool // continue_final_message and echo
	prefill          bool // goes on with a trailing assistant message
	echoes           bool // and repeats it
	wholePrefill     bool // an answer that is no stream holds what was continued
	schemaFollows    bool // a schema's grammar reads what was continued

	earlyHeaders   bool // with the prompt, not with the first token
	earlyStatus    bool // an error before the first token has a status
	errorLines     bool // "error:" instead of "data:"
	pings          bool
	usageInFinish  bool
	cachedInUsage  bool
	cacheInTimings bool
	progress       bool
	staleProgress  bool // timings of progress events are nonsense

	slots       bool // /slots is there
	slotTokens  bool // and counts tokens
	contextMeta bool // /v1/models says the context
	echoesModel bool // an answer's model is what was asked for
	chunkTokens bool // verbose shows the ids of each event's tokens
	newAPIs     bool // Responses and Messages
	streams     bool // resumable ones
	typedLength bool // a prompt that is too long has an error of its own type
}

func (v Version) features() (features, error) {
	switch v {
	case V040, "":
		return features{
			explicitContinue: true, prefill: true, echoes: true, wholePrefill: true, schemaFollows: true,
			earlyHeaders: true, earlyStatus: true, pings: true, cachedInUsage: true, cacheInTimings: true, progress: true,
			slots: true, slotTokens: true, contextMeta: true, chunkTokens: true, newAPIs: true, streams: true, typedLength: true,
		}, nil
	case VFeb26:
		return features{
			prefill: true, earlyStatus: true, cacheInTimings: true, progress: true, staleProgress: true,
			slots: true, newAPIs: true, typedLength: true,
		}, nil
	case VFeb25:
		return features{errorLines: true, usageInFinish: true, echoesModel: true}, nil
	}
	return features{}, fmt.Errorf("stand-in server: no version %q; there are %s, %s and %s", v, V040, VFeb26, VFeb25)
}
