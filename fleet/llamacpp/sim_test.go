package llamacpp

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/slotlog"
)

func simulate(t *testing.T, o llamasim.Options) *llamasim.Server {
	t.Helper()
	s, err := llamasim.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

const simBody = `{"messages":[{"role":"user","content":"tell me"}],"stream":true,"max_tokens":20,"return_progress":true,"timings_per_token":true}`

// answer is the text of the events.
func answer(t *testing.T, h *heard) (text, finish string) {
	t.Helper()
	for _, d := range h.data() {
		var c struct {
			Choices []struct {
				Finish string `json:"finish_reason"`
				Delta  struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(d), &c); err != nil {
			t.Fatalf("%s: %v", d, err)
		}
		for _, x := range c.Choices {
			text += x.Delta.Content
			finish += x.Finish
		}
	}
	return text, finish
}

func TestWholeGenerationOfAServer(t *testing.T) {
	s := simulate(t, llamasim.Options{APIKey: "s3cret", Slots: 3, Context: 1000, Thinking: true})
	l := newLink(t, Options{URL: s.URL(), Key: "s3cret"})
	if _, err := l.Call(t.Context(), fleet.Call{Op: fleet.OpProbe}); err != nil {
		t.Fatal(err)
	}
	i, _ := only(l, timeZero)
	if i.Model != "sim-model" || i.Lanes != 3 || i.Context != 1000 || i.Fingerprint == "" ||
		!i.Features.Has(fleet.ContinueContent|fleet.ContinueReasoning) {
		t.Errorf("learned %+v", i)
	}
	var h heard
	a := fleet.Assignment{Path: "/v1/chat/completions", Body: []byte(simBody)}
	if err := l.Run(t.Context(), a, h.take); err != nil {
		t.Fatal(err)
	}
	if text, finish := answer(t, &h); finish != "length" || text == "" && len(h.data()) < 20 {
		t.Errorf("got %q, finish %q", text, finish)
	}
	var last *fleet.Timings
	var progress int
	for _, e := range h.events {
		if e.Timings != nil {
			last = e.Timings
		}
		if e.Progress != nil {
			progress++
		}
	}
	if last == nil || last.Predicted != 20 || last.Prompt == 0 || progress == 0 {
		t.Errorf("got timings %+v and %d events of progress", last, progress)
	}
	wrong := newLink(t, Options{URL: s.URL(), Key: "other"})
	wantRequestError(t, wrong.Run(t.Context(), a, discard), fleet.ReasonNoNode)
}

func TestFaultsOfAServer(t *testing.T) {
	s := simulate(t, llamasim.Options{})
	l := newLink(t, Options{URL: s.URL()})
	for kind, want := range map[llamasim.FaultKind]string{
		llamasim.FaultNone:     "<nil>",
		llamasim.FaultRefuse:   "lost refused",
		llamasim.FaultReset:    "lost reset",
		llamasim.FaultFin:      "lost closed",
		llamasim.FaultCut:      "lost closed",
		llamasim.FaultHang:     "lost stalled",
		llamasim.FaultLoading:  "lost loading",
		llamasim.FaultError:    "lost crashed",
		llamasim.FaultKVFull:   "overloaded again",
		llamasim.FaultGarbage:  "lost closed",
		llamasim.FaultCleanEOF: "<nil>",
		llamasim.FaultStatus:   "refused again reply",
	} {
		s.SetFault(llamasim.Fault{Kind: kind, Token: 5})
		var h heard
		err := l.Run(t.Context(), fleet.Assignment{
			Path: "/v1/chat/completions", Body: []byte(simBody),
			Patience: fleet.Patience{First: time.Minute, Stall: 300 * time.Millisecond},
		}, h.take)
		if got := verdictOf(err); got != want {
			t.Errorf("%s: got %s (%v), want %s", kind, got, err, want)
		}
		answer(t, &h) // whole JSON in every event
	}
	s.SetFault(llamasim.Fault{})
}

func TestCancelledGenerationFreesItsLane(t *testing.T) {
	s := simulate(t, llamasim.Options{Decode: 200})
	l := newLink(t, Options{URL: s.URL()})
	stop := errors.New("stop")
	body := strings.Replace(simBody, `"max_tokens":20`, `"max_tokens":3000`, 1)
	err := l.Run(t.Context(), fleet.Assignment{Path: "/v1/chat/completions", Body: []byte(body)}, func(e fleet.Event) error {
		if e.Timings != nil {
			return stop
		}
		return nil
	})
	if err != stop {
		t.Fatalf("got %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); s.Stats().Active > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the lane is still taken")
		}
		wait(time.Millisecond)
	}
	if n := s.Stats().Cancelled; n != 1 {
		t.Errorf("got %d cancelled, want 1", n)
	}
}

func TestLoadComesFromTheLogOfTheServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := simulate(t, llamasim.Options{Log: f, Decode: 100})
	source := slotlog.Open(slotlog.SourceOptions{Path: path})
	defer source.Close()
	l := newLink(t, Options{URL: s.URL(), Source: source})
	probe(t, l)
	states, stop := watching(t, l)
	defer stop()

	until := func(what string, ok func(fleet.Load) bool) {
		t.Helper()
		limit := time.After(20 * time.Second)
		for {
			select {
			case i := <-states:
				if ok(i.Load) {
					return
				}
			case <-limit:
				t.Fatalf("%s: not told within 20 s", what)
			}
		}
	}
	until("an idle server", func(l fleet.Load) bool { return l.Active == 0 && !l.At.IsZero() && l.KVTotal == 8192 })
	body := strings.Replace(simBody, `"max_tokens":20`, `"max_tokens":3000`, 1)
	enough := errors.New("enough")
	err = l.Run(t.Context(), fleet.Assignment{Path: "/v1/chat/completions", Body: []byte(body)}, func(e fleet.Event) error {
		if e.Timings == nil {
			return nil
		}
		until("our generation", func(l fleet.Load) bool { return l.Active == 1 && l.Ours == 1 })
		return enough
	})
	if err != enough {
		t.Fatal(err)
	}
	until("an idle server again", func(l fleet.Load) bool { return l.Active == 0 && !l.At.IsZero() })
}
