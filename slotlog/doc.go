// Package slotlog reads what a llama-server writes to its log and says what its
// slots are doing: which run, for which task, how far, and how fast. It looks at
// the log only; nothing here asks the server anything, so watching a node costs
// it nothing.
//
// Bytes pass through four stages:
//
//	file ── Source ──▶ Reader ──▶ Event ──▶ Tracker ──▶ []Slot
//
// A [Reader] cuts bytes into lines and lines into events. It knows the eras of
// the log (where the clock stands, whether the release comes before the timings,
// what a task id on an idle slot means) and absorbs them: what leaves it means
// the same whatever build wrote the line. It holds no reference to the bytes it
// was fed and allocates nothing per line.
//
// A [Tracker] folds events into slot states, one set per port, and keeps the
// ledger of generated tokens. It has no clock and does no I/O. When the log alone
// cannot know (the reader came late, a line was lost, a slow request is silent),
// [Tracker.NeedsSeed] asks for one read of the server's /slots; who answers
// brackets that read with BeginSeed and ApplySeed, so that a line written in
// between always wins over the older answer.
//
// A [Source] owns one log file, its Reader and its Tracker. It follows the file
// through rotation and truncation, and hands out immutable [Snapshot] values.
//
// [ParseLine] and [Tracker.Observe] are for one line of a modern server and skip
// the era layer.
//
// The log is a hint, not proof: text of a request can reach it at some
// verbosities and look like a slot line. The Reader refuses what it can tell
// apart; nothing that must be right may rest on the log alone.
//
// The package logs nothing and imports no other package of this module.
package slotlog
