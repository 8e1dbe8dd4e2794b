package slotlog

import "time"

// Kind is what an [Event] says.
type Kind uint8

// The kinds, with the fields that each one fills besides Seq, Time and Port.
const (
	// KindFrame: a line about a slot that changes nothing (Slot, Task). Its port
	// is known to exist.
	KindFrame Kind = iota

	// KindIdle: the slot is free (Slot). With Own, it was picked for a task; Share is
	// then the likeness of the prompts and Kept how much of the old one is of use, -1
	// when not printed.
	KindIdle

	// KindLaunch: the slot began a task (Slot, Task).
	KindLaunch

	// KindRelease: the slot ended a task (Slot, Task; Tokens: context it keeps;
	// Truncated).
	KindRelease

	// KindPrompt: prefill goes on (Slot, Task; Tokens: prompt tokens so far; Share:
	// how much of the prompt is done). With Own, Tokens are those computed for this
	// task, else all that the context holds.
	KindPrompt

	// KindPrefilled: prefill is over (Slot, Task; Tokens: context).
	KindPrefilled

	// KindRunning: decode goes on (Slot, Task; Tokens: generated so far; Rate: now;
	// Mean: since it began).
	KindRunning

	// KindTiming: the final count of a task that still holds its slot (Slot, Task;
	// Tokens: generated in all; Rate).
	KindTiming

	// KindLate: a count of a task that was released already (Slot, Task; Tokens:
	// generated in all; Rate). Only the ledger and its record want it.
	KindLate

	// KindPromptSize: the size of a task's prompt (Slot, Task; Tokens; Count: what
	// the slot can hold, 0 when not printed). With Own, prefill begins now.
	KindPromptSize

	// KindCached: prefill goes on behind what the slot holds (Slot, Task; Tokens).
	KindCached

	// KindPrefillTiming: the prefill of a task that ended (Slot, Task; Tokens:
	// computed; Rate). With Own, the task was released already.
	KindPrefillTiming

	// KindEnding: the timings of a task follow (Slot, Task).
	KindEnding

	// KindStep: one token of a task (Slot, Task; Tokens: generated so far).
	KindStep

	// KindDraftStep: one batch of draft tokens (Slot, Task; Tokens: accepted; Count:
	// generated).
	KindDraftStep

	// KindDraft: the draft tokens of a task that ended (Slot, Task; Tokens: accepted;
	// Count: generated). With Own, the task was released already.
	KindDraft

	// KindShift: the context was full and lost its older half (Slot, Task; Count:
	// its size, 0 when not printed).
	KindShift

	// KindTruncated: the prompt was cut (Slot, Task; Tokens: what is left of it).
	KindTruncated

	// KindBusy: the slot runs a task (Slot, Task).
	KindBusy

	// KindCleared: the slot lost its context (Slot).
	KindCleared

	// KindSlot: the slot exists and is free (Slot; Count: what it can hold).
	KindSlot

	// KindCancel: the client of a task went away (Task; no slot is named).
	KindCancel

	// KindFailed: a task failed (Task, Failure; Slot when it is named).
	KindFailed

	// KindBackend: the server failed at something that is no single task's (Failure).
	KindBackend

	// KindAllIdle: no slot of the port runs anything.
	KindAllIdle

	// KindStopping: the server is going down; running slots print no release. Without
	// Own, it may be another server that is.
	KindStopping

	// KindExit: the server is gone, and its slots with it.
	KindExit

	// KindReset: another process writes for this port; its slots begin anew.
	KindReset

	// KindLoading: the server loads its model (Share: how much, when HasShare).
	KindLoading

	// KindReady: the server takes requests.
	KindReady

	// KindSleeping: the server gave its model back; its slots are gone.
	KindSleeping

	// KindLanes: the server made its slots (Lanes, Pool; Tokens: context of each, when
	// printed). They are idle and empty.
	KindLanes

	// KindModel: a router's child on this port serves Model (Count: the router's port).
	KindModel

	// KindGone: nothing serves on this port any more.
	KindGone
)

var kindNames = [...]string{
	"frame", "idle", "launch", "release", "prompt", "prefilled", "running", "timing", "late",
	"prompt_size", "cached", "prefill_timing", "ending", "step", "draft_step", "draft", "shift",
	"truncated", "busy", "cleared", "slot", "cancel", "failed", "backend", "all_idle", "stopping",
	"exit", "reset", "loading", "ready", "sleeping", "lanes", "model", "gone",
}

// String returns the kind's name in snake_case.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "kind?"
}

// Pool says whose the context of a server's slots is.
type Pool uint8

// The pools.
const (
	PoolUnknown Pool = iota
	PoolOwn          // each slot has its own
	PoolShared       // all slots take from one (--kv-unified)
)

// Event is one statement of the log, the same in every era. It is a plain value
// and refers to no buffer.
type Event struct {
	// Kind says what happened, and which fields below count.
	Kind Kind

	// HasTokens, HasRate, HasMean and HasShare say whether Tokens, Rate, Mean and
	// Share with Kept were printed.
	HasTokens, HasRate, HasMean, HasShare bool

	// Own narrows what is said; Kind says how.
	Own bool

	// Truncated says that the context was full.
	Truncated bool

	// Pool says whether the slots share one context.
	Pool Pool

	// Seq is the number of the line in its source, from 1.
	Seq uint64

	// Time is when the line was read; the log itself holds no wall clock.
	Time time.Time

	// Port is the llama-server's port; 0: none known. Where the log is that of several
	// containers and one's server has it already, 65536 is added, or a multiple of it.
	Port int

	// Slot and Task are the frame's numbers; Task is -1 for none.
	Slot, Task int

	// Tokens is a count, and Count a second one; Kind says of what.
	Tokens, Count int64

	// Rate is in tokens per second, finite and never negative.
	Rate float64

	// Mean is a rate since the beginning, where Rate is that of the last seconds.
	Mean float64

	// Share and Kept are from 0 to 1.
	Share, Kept float32

	// Lanes is how many slots the server has.
	Lanes int

	// Model is the name the router gives the child on Port.
	Model string

	// Failure is one of the words for it, never the log's own.
	Failure Failure
}
