package slotlog

import "time"

// Kind is what an [Event] says.
type Kind uint8

// The kinds, with the fields that each one fills besides Seq, Time and Port.
const (
	// KindFrame: a line about a slot that changes nothing (Slot, Task). Its port
	// is known to exist.
	KindFrame Kind = iota

	// KindIdle: the slot is free (Slot).
	KindIdle

	// KindLaunch: the slot began a task (Slot, Task).
	KindLaunch

	// KindRelease: the slot ended a task (Slot, Task; Tokens: context it keeps).
	KindRelease

	// KindPrompt: prefill goes on (Slot, Task; Tokens: prompt tokens so far).
	KindPrompt

	// KindRunning: decode goes on (Slot, Task; Tokens: generated so far; Rate).
	KindRunning

	// KindTiming: the final count of a task that still holds its slot (Slot, Task;
	// Tokens: generated in all; Rate).
	KindTiming

	// KindLate: a count of a task that was released already (Slot, Task; Tokens:
	// generated in all). Only the ledger wants it.
	KindLate

	// KindAllIdle: no slot of the port runs anything.
	KindAllIdle

	// KindStopping: the server is going down; running slots print no release.
	KindStopping

	// KindReset: another process writes for this port; its slots begin anew.
	KindReset

	// KindLanes: the server made its slots (Lanes, Pool; Tokens: context of each, when
	// printed). They are idle and empty.
	KindLanes

	// KindModel: a router's child on this port serves Model.
	KindModel

	// KindGone: nothing serves on this port any more.
	KindGone
)

var kindNames = [...]string{
	"frame", "idle", "launch", "release", "prompt", "running", "timing", "late",
	"all_idle", "stopping", "reset", "lanes", "model", "gone",
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

	// HasTokens and HasRate say whether Tokens and Rate were printed.
	HasTokens, HasRate bool

	// Seq is the number of the line in its source, from 1.
	Seq uint64

	// Time is when the line was read; the log itself holds no wall clock.
	Time time.Time

	// Port is the llama-server's port; 0: none known.
	Port int

	// Slot and Task are the frame's numbers; Task is -1 for none.
	Slot, Task int

	// Tokens is a count; Kind says of what.
	Tokens int64

	// Rate is in tokens per second, finite and never negative.
	Rate float64

	// Lanes is how many slots the server has.
	Lanes int

	// Pool says whether they share one context.
	Pool Pool

	// Model is the name the router gives the child on Port.
	Model string
}
