package slotlog

import (
	"reflect"
	"strings"
	"testing"
)

func TestPageOfLogsNamesEveryWordAndFigure(t *testing.T) {
	page := string(readFile(t, "../docs/slotlog.md"))
	var words []string
	for _, p := range []Phase{PhaseIdle, PhasePrefill, PhaseDecode, PhaseBusy, PhaseLost} {
		words = append(words, string(p))
	}
	for _, f := range failureWords[1:] {
		words = append(words, string(f))
	}
	for _, o := range outcomes[1:] {
		words = append(words, string(o))
	}
	for _, s := range []ServerState{ServerUnknown, ServerLoading, ServerReady, ServerSleeping, ServerExited} {
		words = append(words, string(s))
	}
	d := reflect.TypeFor[Detail]()
	for f := range d.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "slot" && name != "phase" {
			words = append(words, name)
		}
	}
	for _, w := range words {
		if !strings.Contains(page, "`"+w+"`") {
			t.Errorf("docs/slotlog.md does not say what %q is", w)
		}
	}
}
