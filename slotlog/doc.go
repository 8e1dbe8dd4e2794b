// Package slotlog reads what a llama-server writes to its log and says what its
// slots are doing: which run, for which task, how far, and how fast. It looks at
// the log only; nothing here asks the server anything, so watching a node costs
// it nothing. docs/slotlog.md says which logs it understands.
//
// Bytes pass through these stages, each in files of its own:
//
//	log ── Source ──▶ Reader ──────────────────────────▶ Event ──▶ Tracker ──▶ []Slot
//	                  text ▶ lines ▶ carriers ▶ words              records      []Detail
//
// A [Reader] makes UTF-8 of the bytes (coding.go), cuts them into lines (reader.go),
// takes off what collectors put around a line (unwrap.go, carrier.go, json.go) and
// finds the words: of a frame (rules.go), of a record of 2024 (record.go), of the
// free text before that (freetext.go), of the server itself (server.go) or of a router
// (router.go). It knows the eras of the log (where the clock stands, whether the
// release comes before the timings, what a task id on an idle slot means) and absorbs
// them (era.go): what leaves it means the same whatever build wrote the line. Each
// line is looked at alone but for that, so formats may mix. It holds no reference to
// the bytes it was fed and allocates nothing per line. Most lines take a shorter way,
// straight from the chunk (quick.go, quickslot.go, quickprompt.go, quicktext.go, dial.go,
// words.go), which comes to the same; most figures stand in columns (columns.go). The lines
// of each container in one log are kept apart by the name before them (container.go).
//
// A [Tracker] folds events into slot states, one set per port, and keeps the
// ledger of generated tokens. Beside the states stand what else is known, as [Detail]
// and [ServerDetail], and a [RequestRecord] of each task that ended. It has no clock
// and does no I/O.
//
// A [Source] owns one log, its Reader and its Tracker, and hands out [Snapshot]
// values. A file is followed by a tail (tail.go) through rotation and truncation; the
// tail reads through a small interface, and a watcher (watch.go) that all sources
// share wakes it on file events and once a second. Everything else is a stream
// (stream.go): a FIFO, the standard input, or the output of a program (program.go)
// that runs in a process group of its own. kind.go says what there is and refuses
// names that a program could take for something else. Where lines stop following
// each other, that is a resync: half a line is dropped, and after a stream that broke
// no slot is known.
//
// The log alone cannot always know: a reader comes late, a line is lost, a slow
// request is silent. Who can ask the server may help it: [Source.NeedsSeed] says when
// one read of the server's /slots is worth it, and [Source.BeginSeed] and
// [Source.ApplySeed] around that read make a line written in between win over the
// older answer. [Source.Confirm] takes a router's word on its children.
//
// [ParseLine] and [Tracker.Observe] are for one line of a modern server and skip
// the era layer.
//
// The log is a hint, not proof: text of a request can reach it at some
// verbosities and look like a slot line. The Reader refuses what it can tell
// apart; nothing that must be right may rest on the log alone. No text of a line
// leaves it, but for the names of models in a router's own lines. What a log can make
// this package remember is bounded: 256 ports, those heard longest ago going first,
// 4096 slots of a server that said how many it has and 256 of one that did not,
// 16384 in all, and 256 bytes of a model's name.
//
// The package logs nothing and imports no other package of this module.
package slotlog
