package caddymodule

import (
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/slotlog"
)

func TestSlotsTable(t *testing.T) {
	all := allSlots{Sources: []sourceSlots{
		{
			Source: "gpu\x1b[2J", Node: "box-a", Age: new(0.4),
			Ports: []portSlots{{
				Port: 8080, Model: "m\x07",
				Server: slotlog.ServerDetail{Lanes: 2, LaneContext: 8192},
				Slots: []slotlog.Slot{
					{Slot: 0, State: slotlog.Processing, Task: new(12), PromptTokens: new(int64(1630)), Decoded: new(int64(90)), RateTps: new(110.44)},
					{Slot: 1, State: slotlog.Idle},
				},
				Details: []slotlog.Detail{
					{Slot: 0, Phase: slotlog.PhasePrefill, Progress: new(0.456), PromptTokens: new(int64(1700)), CachedTokens: new(int64(70)), CancelPending: true},
				},
			}},
		},
		{Source: "other", Also: []string{"same"}, Degraded: true, Reason: "log /x does not exist", Ports: []portSlots{}},
	}}
	var b strings.Builder
	if err := all.write(&b); err != nil {
		t.Fatal(err)
	}
	const want = `source gpu\x1b[2J, of node box-a, read 0s ago
port 8080, model m\a, 2 slots of 8,192 tokens
  SLOT  STATE        TASK  CONTEXT  PROMPT  CACHED  GENERATED  TOKENS/S  NOTE
  0     prefill 45%  12    1,630    1,700   70      90         110.4     cancelled
  1     idle         -     -        -       -       -          -         -

source other, same, not reliable: log /x does not exist
no slots seen

`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if all.whole() {
		t.Error("a log that does not exist counts as reliable")
	}
	if (allSlots{}).whole() {
		t.Error("no log counts as reliable")
	}
}
