package llamacpp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/slotlog"
)

// seededLog is a tracker behind the interface that a seeder sees.
type seededLog struct {
	mu   sync.Mutex
	t    *slotlog.Tracker
	own  int
	note slotlog.SeedNote
	told int // notes
	err  error
}

func newSeededLog() *seededLog { return &seededLog{t: slotlog.NewTracker(), own: 1} }

func (l *seededLog) Snapshot(now time.Time) slotlog.Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slotlog.Snapshot{LookedAt: now, Err: l.err, OwnPort: l.own, Ports: l.t.Report(now)}
}

func (l *seededLog) NeedsSeed(port int, now time.Time, lanes int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.t.NeedsSeed(port, now, lanes)
}

func (l *seededLog) BeginSeed(port int, now time.Time) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.t.BeginSeed(port, now)
}

func (l *seededLog) ApplySeed(port int, mark uint64, slots []slotlog.SeedSlot, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.ApplySeed(port, mark, slots, now)
}

func (l *seededLog) Confirm(models map[int]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ports := []int{}
	for p, m := range models {
		ports = append(ports, p)
		l.t.Apply(slotlog.Event{Kind: slotlog.KindModel, Port: p, Slot: -1, Task: -1, Model: m})
	}
	l.t.Retain(ports)
}

func (l *seededLog) NoteSeed(n slotlog.SeedNote) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note = n
	l.told++
}

// seedServer answers by path, and counts what it is asked.
type seedServer struct {
	*httptest.Server
	mu      sync.Mutex
	answers map[string]string // "STATUS body"
	asked   map[string]int
}

func newSeedServer(t *testing.T, answers map[string]string) *seedServer {
	t.Helper()
	s := &seedServer{answers: answers, asked: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked[r.URL.RequestURI()]++
		answer := s.answers[r.URL.RequestURI()]
		s.mu.Unlock()
		status := http.StatusNotFound
		if _, err := fmt.Sscan(answer, &status); err == nil {
			_, answer, _ = strings.Cut(answer, " ")
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *seedServer) count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[path]
}

func (s *seedServer) set(path, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[path] = answer
}

const (
	awake     = `200 {"total_slots":2,"is_sleeping":false}`
	twoSlots  = `200 [{"id":0,"is_processing":true,"id_task":41,"n_prompt_tokens":1390,"prompt":"secret","next_token":[{"n_decoded":100}]},{"id":1,"is_processing":false}]`
	seedStart = 1_000_000
)

// rounds has a seeder run once for each second.
func rounds(t *testing.T, s *Seeder, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		if now := time.Unix(seedStart+int64(n), 0); !now.Before(s.rest) {
			s.round(t.Context(), now)
		}
	}
}

func seederOf(t *testing.T, s *seedServer, log seedLog) *Seeder {
	t.Helper()
	return newSeeder(newLink(t, Options{URL: s.URL}), log)
}

func TestSlotsAreReadOnceAndNoMore(t *testing.T) {
	server, log := newSeedServer(t, map[string]string{"/props": awake, "/slots": twoSlots}), newSeededLog()
	rounds(t, seederOf(t, server, log), 0, 100)
	if got := server.count("/slots"); got != 1 {
		t.Errorf("reads of /slots in 100 s: got %d, want 1", got)
	}
	want := []slotlog.Slot{
		{Slot: 0, State: slotlog.Processing, PromptTokens: new(int64(1290)), Decoded: new(int64(100))},
		{Slot: 1, State: slotlog.Idle},
	}
	if d := cmp.Diff(want, log.t.Resolve(1, time.Now())); d != "" {
		t.Errorf("slots (-want +got):\n%s", d)
	}
	if log.note.State != slotlog.SeedDone {
		t.Errorf("state: got %q, want done", log.note.State)
	}
}

func TestServerThatDoesNotAnswerIsAskedThreeTimesInTwoMinutes(t *testing.T) {
	server, log := newSeedServer(t, map[string]string{"/props": awake, "/slots": "503 {}"}), newSeededLog()
	s := seederOf(t, server, log)
	rounds(t, s, 0, 119)
	if got := server.count("/slots"); got != slotlog.MaxSeedAttempts {
		t.Errorf("reads of /slots in 119 s: got %d, want %d", got, slotlog.MaxSeedAttempts)
	}
	if log.note.State != slotlog.SeedFailed || !strings.Contains(log.note.Reason, "503") {
		t.Errorf("note: got %+v, want failed with 503", log.note)
	}
	server.set("/slots", twoSlots)
	rounds(t, s, 119, 125)
	if log.note.State != slotlog.SeedDone {
		t.Errorf("note after 2 minutes: got %+v, want done", log.note)
	}
}

// A server that is not there is not asked each second what it is.
func TestSilentServerIsAskedEverMoreSeldomWhatItIs(t *testing.T) {
	server, log := newSeedServer(t, map[string]string{"/props": "503 {}"}), newSeededLog()
	rounds(t, seederOf(t, server, log), 0, 600)
	if got := server.count("/props"); got < 5 || got > 12 {
		t.Errorf("questions in 600 s: got %d, want 5 to 12", got)
	}
	if got := server.count("/slots"); got != 0 {
		t.Errorf("reads of /slots: got %d, want none", got)
	}
}

func TestSleepingServerIsLeftAsleep(t *testing.T) {
	server, log := newSeedServer(t, map[string]string{"/props": `200 {"total_slots":2,"is_sleeping":true}`, "/slots": twoSlots}), newSeededLog()
	s := seederOf(t, server, log)
	rounds(t, s, 0, 600)
	if got := server.count("/slots"); got != 0 {
		t.Errorf("reads of /slots: got %d, want none", got)
	}
	if log.note.State != slotlog.SeedAsleep {
		t.Errorf("state: got %q, want asleep", log.note.State)
	}
}

// What a server does not allow is a state: it is told once, and nothing asks again and
// again.
func TestSlotsThatAreOffAreAState(t *testing.T) {
	for name, answer := range map[string]struct{ props, slots, want string }{
		"off":        {awake, `501 {"error":{"code":501,"message":"This server does not support slots endpoint. Start it with --slots","type":"not_supported_error"}}`, "--slots"},
		"old":        {awake, "404 {}", "--slots"},
		"forbidden":  {awake, "403 {}", "key"},
		"key":        {awake, "401 {}", "key"},
		"key, props": {"401 {}", "401 {}", "key"},
	} {
		t.Run(name, func(t *testing.T) {
			server, log := newSeedServer(t, map[string]string{"/props": answer.props, "/slots": answer.slots}), newSeededLog()
			s := seederOf(t, server, log)
			s.round(t.Context(), time.Unix(seedStart, 0))
			if log.note.State != slotlog.SeedOff || !strings.Contains(log.note.Reason, answer.want) {
				t.Errorf("note: got %+v, want off because of %q", log.note, answer.want)
			}
			if d := time.Until(s.rest); d < offPause-time.Minute {
				t.Errorf("asked again in %v, want %v", d, offPause)
			}
			if got := server.count("/slots"); got > 1 {
				t.Errorf("reads of /slots: got %d, want at most 1", got)
			}
		})
	}
}

// A line that was written while the server was asked is newer than its answer.
func TestNewerLineWinsOverTheAnswer(t *testing.T) {
	log := newSeededLog()
	log.t.Apply(slotlog.Event{Kind: slotlog.KindFrame, Seq: 1, Port: 1, Slot: 0, Task: 1})
	server := newSeedServer(t, map[string]string{"/props": awake})
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/props" {
			fmt.Fprint(w, strings.TrimPrefix(awake, "200 "))
			return
		}
		log.mu.Lock()
		log.t.Apply(slotlog.Event{Kind: slotlog.KindRelease, Seq: 2, Time: time.Now(), Port: 1, Slot: 0, Task: 41})
		log.mu.Unlock()
		fmt.Fprint(w, strings.TrimPrefix(twoSlots, "200 "))
	})
	rounds(t, seederOf(t, server, log), 0, 3)
	if got := log.t.Resolve(1, time.Now())[0].State; got != slotlog.Idle {
		t.Errorf("slot 0: got %s, want idle, as the line says", got)
	}
}

func TestLogThatCannotBeReadIsNotSeeded(t *testing.T) {
	server, log := newSeedServer(t, map[string]string{"/props": awake, "/slots": twoSlots}), newSeededLog()
	log.err = errors.New("gone")
	rounds(t, seederOf(t, server, log), 0, 10)
	if len(server.asked) != 0 {
		t.Errorf("asked: got %v, want nothing", server.asked)
	}
}

func TestAnswersOfAllVersionsAreRead(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		want []slotlog.SeedSlot
		bad  bool
	}{
		"2026":       {`[{"id":0,"is_processing":true,"n_prompt_tokens":5,"next_token":[{"n_decoded":2}]}]`, []slotlog.SeedSlot{{State: slotlog.Processing, PromptTokens: new(int64(3)), Decoded: new(int64(2))}}, false},
		"2025":       {`[{"id":1,"is_processing":true,"next_token":{"n_decoded":2}}]`, []slotlog.SeedSlot{{Slot: 1, State: slotlog.Processing, Decoded: new(int64(2))}}, false},
		"2024":       {`[{"id":0,"state":1,"next_token":{"n_decoded":3}},{"id":1,"state":0}]`, []slotlog.SeedSlot{{State: slotlog.Processing, Decoded: new(int64(3))}, {Slot: 1, State: slotlog.Idle}}, false},
		"idle":       {`[{"id":0,"is_processing":false,"n_prompt_tokens":7,"next_token":[{"n_decoded":9}]}]`, []slotlog.SeedSlot{{State: slotlog.Idle, PromptTokens: new(int64(7))}}, false},
		"no state":   {`[{"id":0}]`, []slotlog.SeedSlot{{State: slotlog.Unknown}}, false},
		"odd counts": {`[{"id":0,"is_processing":true,"n_prompt_tokens":-1,"next_token":[{"n_decoded":"x"}]}]`, []slotlog.SeedSlot{{State: slotlog.Processing}}, false},
		"no id":      {`[{"is_processing":true}]`, nil, true},
		"an error":   {`{"error":{}}`, nil, true},
		"html":       {`<html>`, nil, true},
	} {
		got, ok := readSlots([]byte(tt.body))
		if ok == tt.bad || ok && cmp.Diff(tt.want, got) != "" {
			t.Errorf("%s: got %v, %+v, want %v, %+v", name, ok, got, !tt.bad, tt.want)
		}
	}
}

// routerAnswer is a router's list with one child at a port.
func routerAnswer(port, status string) string {
	return `200 {"data":[{"id":"m 1","status":{"value":"` + status + `","args":["llama-server","--port","` + port + `","--alias","m 1"]}},` +
		`{"id":"m2","status":{"value":"unloaded","args":["llama-server","--port","0"]}}]}`
}

// The children of a router on this machine are asked themselves; the port is the
// router's word, and a port of the log that the router does not know is forgotten.
func TestChildrenOfARouterAreReadStraight(t *testing.T) {
	child := newSeedServer(t, map[string]string{"/slots": twoSlots})
	u, _ := url.Parse(child.URL)
	router := newSeedServer(t, map[string]string{
		"/props": `200 {"role":"router"}`, "/v1/models": routerAnswer(u.Port(), "loaded"),
	})
	log := newSeededLog()
	log.t.Apply(slotlog.Event{Kind: slotlog.KindLaunch, Seq: 1, Time: time.Now(), Port: 4711, Slot: 0, Task: 1}) // of a child that is gone
	rounds(t, seederOf(t, router, log), 0, 50)
	var ports []string
	for _, p := range log.t.Report(time.Now()) {
		ports = append(ports, fmt.Sprint(p.Port, " ", p.Model, " ", len(p.Slots)))
	}
	if want := []string{u.Port() + " m 1 2"}; cmp.Diff(want, ports) != "" {
		t.Errorf("ports, models, slots: got %q, want %q", ports, want)
	}
	if got := child.count("/slots"); got != 1 {
		t.Errorf("reads at the child: got %d, want 1", got)
	}
	if got := router.count("/v1/models"); got > 2 {
		t.Errorf("questions to the router: got %d, want at most 2", got)
	}
	for path := range router.asked {
		if strings.HasPrefix(path, "/slots") {
			t.Errorf("the router was asked %s, which it writes into the log", path)
		}
	}
}

func TestChildrenThatLoadOrSleepAreNotAsked(t *testing.T) {
	for _, status := range []string{"loading", "sleeping"} {
		child := newSeedServer(t, map[string]string{"/slots": twoSlots})
		u, _ := url.Parse(child.URL)
		router := newSeedServer(t, map[string]string{
			"/props": `200 {"role":"router"}`, "/v1/models": routerAnswer(u.Port(), status),
		})
		rounds(t, seederOf(t, router, newSeededLog()), 0, 119)
		if got := child.count("/slots"); got != 0 {
			t.Errorf("%s: reads at the child: got %d, want none", status, got)
		}
		if got := router.count("/v1/models"); got > 1+slotlog.MaxSeedAttempts {
			t.Errorf("%s: questions to the router in 119 s: got %d, want at most %d", status, got, 1+slotlog.MaxSeedAttempts)
		}
	}
}

func TestChildOnAnotherMachineIsReadThroughItsRouter(t *testing.T) {
	c, err := newClient(Options{URL: "http://10.0.0.7:8080/api"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	at, path := c.child(routed{port: 4711, model: "a/b c"})
	if at != c || path != "/slots?autoload=false&model=a%2Fb+c" {
		t.Errorf("got %s%s, want the router and its model", at.base, path)
	}
	c, err = newClient(Options{URL: "http://localhost:8080/api"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if at, path = c.child(routed{port: 4711}); at.base+path != "http://127.0.0.1:4711/api/slots" {
		t.Errorf("got %s%s, want the child on this machine", at.base, path)
	}
}

// Beginning to read a log while the server runs something: the seed says what no line
// will say again, and the tokens of before are not counted.
func TestSeededSlotOfARunningServerIsCountedFromThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	server := simulate(t, llamasim.Options{Log: f, Decode: 200})
	l := newLink(t, Options{URL: server.URL()})
	enough := errors.New("enough")
	body := strings.Replace(simBody, `"max_tokens":20`, `"max_tokens":3000`, 1)
	err = l.Run(t.Context(), fleet.Assignment{Path: "/v1/chat/completions", Body: []byte(body)}, func(e fleet.Event) error {
		if e.Timings == nil {
			return nil
		}
		// Somebody empties the log, then we come.
		if err := os.Truncate(path, 0); err != nil {
			return err
		}
		source := slotlog.Open(slotlog.SourceOptions{Path: path})
		defer source.Close()
		s, err := NewSeeder(Options{Name: "sim", URL: server.URL(), Source: source})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		defer func() {
			cancel()
			running.Wait()
		}()
		changed, unsubscribe := source.Subscribe()
		defer unsubscribe()
		for limit := time.After(20 * time.Second); ; {
			select {
			case <-changed:
			case <-limit:
				t.Fatalf("no seed within 20 s: %+v", source.Snapshot(time.Now()))
			}
			for _, p := range source.Snapshot(time.Now()).Ports {
				for _, slot := range p.Slots {
					if slot.State == slotlog.Processing && slot.Decoded != nil && *slot.Decoded > 0 {
						return enough
					}
				}
			}
		}
	})
	if err != enough {
		t.Fatal(err)
	}
}
