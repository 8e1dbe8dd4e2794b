package slotlog

import "time"

// Phase is what a slot works on, finer than its [State].
type Phase string

// The phases. Busy means that the slot runs a task of which the log does not say
// whether it still reads its prompt. Lost means that we lost track of it.
const (
	PhaseIdle    Phase = "idle"
	PhasePrefill Phase = "prefill"
	PhaseDecode  Phase = "decode"
	PhaseBusy    Phase = "busy"
	PhaseLost    Phase = "unknown"
)

// Failure is why a task or a whole server failed. The words are ours: the text that
// the server printed may hold parts of a request, and is never kept.
type Failure string

// The failures.
const (
	// FailureContext: the context of the slot or of the pool was used up.
	FailureContext Failure = "context_exceeded"

	// FailureCache: no room in the KV cache; the server tries smaller batches.
	FailureCache Failure = "kv_cache_short"

	// FailureDecode: a batch could not be computed.
	FailureDecode Failure = "decode_failed"

	// FailureMedia: an image or a sound could not be read.
	FailureMedia Failure = "media_failed"

	// FailureLoad: the model could not be loaded.
	FailureLoad Failure = "load_failed"

	// FailureKilled: the router killed the server.
	FailureKilled Failure = "killed"

	// FailureOther: an error in words that have no name here.
	FailureOther Failure = "error"
)

// Detail is what a log says of a slot beyond its [Slot]. Figures that the log did
// not print are absent; those of a task end with it.
type Detail struct {
	// Slot is the id, from 0.
	Slot int `json:"slot"`

	// Phase is what the slot does.
	Phase Phase `json:"phase"`

	// Task is the id of the running task.
	Task *int `json:"task,omitempty"`

	// PromptTokens is the size of the task's prompt.
	PromptTokens *int64 `json:"prompt_tokens,omitempty"`

	// PromptProcessed is how many tokens of the prompt were computed for this task,
	// without those that the slot had in its cache.
	PromptProcessed *int64 `json:"prompt_processed,omitempty"`

	// Progress is the share of the prompt that is done, 0 to 1, cached part included.
	Progress *float64 `json:"progress,omitempty"`

	// CachedTokens is how many tokens of the prompt the slot had already.
	CachedTokens *int64 `json:"cached_tokens,omitempty"`

	// Similarity is how much of the prompt the slot had when it was picked, and
	// KeptShare how much of what it had was of use, 0 to 1.
	Similarity *float64 `json:"similarity,omitempty"`
	KeptShare  *float64 `json:"kept_share,omitempty"`

	// Generated is how many tokens the task has generated as of the last readout.
	Generated *int64 `json:"generated,omitempty"`

	// Rate is the task's mean decode speed in tokens per second, RateNow that of
	// the last three seconds.
	Rate    *float64 `json:"rate,omitempty"`
	RateNow *float64 `json:"rate_now,omitempty"`

	// ContextUsed is how many tokens the slot holds, in use or kept for later.
	ContextUsed *int64 `json:"context_used,omitempty"`

	// ContextSize is how many it can hold, when a line about the slot said so.
	ContextSize *int64 `json:"context_size,omitempty"`

	// ContextShifts is how often the task's context was full and lost its older half.
	ContextShifts int `json:"context_shifts,omitempty"`

	// Truncated says that the prompt was cut to fit.
	Truncated bool `json:"truncated,omitempty"`

	// DraftAccepted and DraftGenerated count tokens of the draft model: a lower
	// bound while the task runs.
	DraftAccepted  *int64 `json:"draft_accepted,omitempty"`
	DraftGenerated *int64 `json:"draft_generated,omitempty"`

	// CancelPending says that the client went away and the slot was not released yet.
	CancelPending bool `json:"cancel_pending,omitempty"`

	// Failure is why the task fails.
	Failure Failure `json:"failure,omitempty"`

	// LaunchedAt, FirstTokenAt and ReleasedAt are when the lines that say so were
	// read. FirstTokenAt is the first line that shows the task decoding, which some
	// builds print late. ReleasedAt is of the task before, while one runs.
	LaunchedAt   time.Time `json:"launched_at,omitzero"`
	FirstTokenAt time.Time `json:"first_token_at,omitzero"`
	ReleasedAt   time.Time `json:"released_at,omitzero"`

	// Last is the task that ended last in this slot.
	Last *RequestRecord `json:"last,omitempty"`
}

// ServerState is what a server is about, as its log has it.
type ServerState string

// The states of a server.
const (
	ServerUnknown  ServerState = "unknown"
	ServerLoading  ServerState = "loading"
	ServerReady    ServerState = "ready"
	ServerSleeping ServerState = "sleeping"
	ServerExited   ServerState = "exited"
)

// ServerDetail is what a log says of one server beyond its slots.
type ServerDetail struct {
	// Port is the server's port.
	Port int `json:"port"`

	// Model is the router's name for what it serves.
	Model string `json:"model,omitempty"`

	// State is what the server is about.
	State ServerState `json:"state"`

	// LoadProgress is the share of the model that is loaded, 0 to 1.
	LoadProgress *float64 `json:"load_progress,omitempty"`

	// Lanes is how many slots the server has, LaneContext the context of each in
	// tokens, and KVUnified says whether they share one pool of that size.
	Lanes       int   `json:"lanes,omitempty"`
	LaneContext int64 `json:"lane_context,omitempty"`
	KVUnified   *bool `json:"kv_unified,omitempty"`

	// Restarts counts how often another process took over the port.
	Restarts int `json:"restarts,omitempty"`

	// Backend is the server's last error that is about no task; it ends when a
	// task is launched after it.
	Backend Failure `json:"backend,omitempty"`

	// Children are the ports of the servers that this router started and that run.
	Children []int `json:"children,omitempty"`
}

// Outcome is how a task ended.
type Outcome string

// The outcomes. Truncated means that the context was full. Lost means that no
// release was seen: the server went away, or its line was lost.
const (
	OutcomeDone      Outcome = "done"
	OutcomeCancelled Outcome = "cancelled"
	OutcomeFailed    Outcome = "failed"
	OutcomeTruncated Outcome = "truncated"
	OutcomeLost      Outcome = "lost"
)

// RequestRecord is one task from its launch to its end. A request with "n" above 1
// has one for each answer. Figures that the log did not print are absent.
type RequestRecord struct {
	// Port, Slot and Task say whose it was.
	Port int `json:"port"`
	Slot int `json:"slot"`
	Task int `json:"task"`

	// Outcome is how it ended, and Failure why it failed.
	Outcome Outcome `json:"outcome"`
	Failure Failure `json:"failure,omitempty"`

	// PickedAt is when the server chose the slot for it, LaunchedAt when the task
	// began, FirstTokenAt when it was first seen decoding, ReleasedAt when it ended:
	// the times at which the lines were read.
	PickedAt     time.Time `json:"picked_at,omitzero"`
	LaunchedAt   time.Time `json:"launched_at,omitzero"`
	FirstTokenAt time.Time `json:"first_token_at,omitzero"`
	ReleasedAt   time.Time `json:"released_at,omitzero"`

	// PromptTokens is the size of the prompt, PromptProcessed how many of them were
	// computed and CachedTokens how many were in the slot already.
	PromptTokens    *int64 `json:"prompt_tokens,omitempty"`
	PromptProcessed *int64 `json:"prompt_processed,omitempty"`
	CachedTokens    *int64 `json:"cached_tokens,omitempty"`

	// Generated is how many tokens it generated. For a task that was cancelled it is
	// the last readout, a lower bound.
	Generated *int64 `json:"generated,omitempty"`

	// PrefillRate and Rate are the speeds of prefill and decode in tokens per second.
	PrefillRate *float64 `json:"prefill_rate,omitempty"`
	Rate        *float64 `json:"rate,omitempty"`

	// DraftAccepted and DraftGenerated count tokens of the draft model.
	DraftAccepted  *int64 `json:"draft_accepted,omitempty"`
	DraftGenerated *int64 `json:"draft_generated,omitempty"`

	// ContextShifts is how often its context was full.
	ContextShifts int `json:"context_shifts,omitempty"`
}
