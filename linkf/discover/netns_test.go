package discover

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asMachine has this test binary be one of two machines instead: "head" announces a head
// until its input ends, "node" prints what it finds until then.
const asMachine = "SLOTFLEET_TEST_MACHINE"

func TestMain(m *testing.M) {
	which := os.Getenv(asMachine)
	if which == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if err := beMachine(which); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func beMachine(which string) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if which == "node" {
		return Find(ctx, slog.New(slog.DiscardHandler), func(all []Head) { fmt.Println("found", all) })
	}
	a, err := Announce(Options{Identity: "machine", Port: 8454})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return a.Close()
}

// startMachine runs this binary in a network namespace until it is told to stop.
func startMachine(t *testing.T, namespace, which string) (said chan string, stop func()) {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", namespace, os.Args[0])
	cmd.Env = append(os.Environ(), asMachine+"="+which)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said = make(chan string, 1000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said <- lines.Text()
		}
	}()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = in.Close()
			<-ended
			if err := cmd.Wait(); err != nil {
				t.Errorf("the machine with the %s: %v", which, err)
			}
		}
	}
	t.Cleanup(stop)
	return said, stop
}

// Two machines with a cable between them, and a third network that only one has.
func TestHeadIsFoundOnAnotherMachine(t *testing.T) {
	ip := func(args ...string) error {
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	id := os.Getpid()
	a, b := fmt.Sprintf("sf%da", id), fmt.Sprintf("sf%db", id)
	if err := ip("netns", "add", a); err != nil {
		t.Skipf("network namespaces are not possible here: %v", err)
	}
	t.Cleanup(func() { _ = ip("netns", "del", a) })
	for _, args := range []string{
		"netns add " + b,
		"link add eth0 netns " + a + " type veth peer name eth0 netns " + b,
		"-n " + a + " addr add 10.7.0.1/24 dev eth0",
		"-n " + b + " addr add 10.7.0.2/24 dev eth0",
		"-n " + a + " link add other type veth peer name another",
		"-n " + a + " addr add 10.8.0.1/24 dev other",
		"-n " + a + " link set other up",
		"-n " + a + " link set another up",
		"-n " + a + " link set eth0 up",
		"-n " + b + " link set eth0 up",
	} {
		if err := ip(strings.Fields(args)...); err != nil {
			_ = ip("netns", "del", b)
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = ip("netns", "del", b) })
	said, _ := startMachine(t, b, "node")
	_, leave := startMachine(t, a, "head")
	hears := func(what string, ok func(string) bool) {
		t.Helper()
		end := time.After(15 * time.Second)
		for {
			select {
			case line := <-said:
				t.Log(line)
				if strings.Contains(line, "10.8.") {
					t.Errorf("%s: an address of another network", line)
				}
				if ok(line) {
					return
				}
			case <-end:
				t.Fatalf("the node did not hear %s", what)
			}
		}
	}
	hears("of the head", func(line string) bool { return strings.Contains(line, "10.7.0.1:8454") })
	leave()
	hears("that it left", func(line string) bool { return line == "found []" })
}
