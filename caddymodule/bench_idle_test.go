//go:build unix

package caddymodule

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/linkf"
)

// idleNodes are linked to one head.
const idleNodes = 1000

// idle is a model server that nobody asks anything.
type idle struct{ fleet.Link }

func (idle) Watch(ctx context.Context, f func(fleet.NodeState)) {
	f(fleet.NodeState{Instances: []fleet.Instance{{Model: "m", State: fleet.StateReady, Lanes: 4, Context: 8192}}})
	<-ctx.Done()
}

func (idle) Call(context.Context, fleet.Call) (fleet.Reply, error) { return fleet.Reply{}, nil }

func (idle) Close(string) error { return nil }

// beNodes links nodes to a head, one after the other as a head lets them in, until its
// standard input ends.
func beNodes(head, token string) error {
	k, err := linkf.ParseToken(token)
	if err != nil {
		return err
	}
	for i := range idleNodes {
		said := make(lines, 10)
		n, err := linkf.NewNode(linkf.NodeOptions{
			Identity: fmt.Sprint("box-", i), Upstream: idle{}, Tokens: []linkf.Token{k},
			Logger: slog.New(slog.NewTextHandler(said, nil)),
		})
		if err != nil {
			return err
		}
		go n.Join(context.Background(), head)
		for line := range said {
			if strings.Contains(line, "linked to a head") {
				break
			}
		}
	}
	fmt.Println("linked")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// BenchmarkThousandIdleNodes measures what nodes that dialled in and do nothing cost the
// head: memory that the process has more than before, and CPU.
func BenchmarkThousandIdleNodes(b *testing.B) {
	token, door := linkf.NewToken(), freeAddr(b)
	e := startEdge(b, fmt.Sprintf("fleet {\n\t\tlisten %s\n\t\ttoken %s\n\t}", door, token), "fleet")
	before := resident(b)
	runPeer(b, nil, peerVariable+"=agents", "SLOTFLEET_BENCH_HEAD="+door, "SLOTFLEET_BENCH_TOKEN="+token)
	for deadline := time.Now().Add(2 * time.Minute); ; {
		var s struct{ Up int }
		decode(b, e.get(e.Admin+"/fleet/nodes").Body, &s)
		if s.Up == idleNodes {
			break
		}
		if time.Now().After(deadline) {
			b.Fatalf("%d nodes are up after 2 minutes", s.Up)
		}
		time.Sleep(500 * time.Millisecond)
	}
	after := resident(b)
	began, spent := time.Now(), cpu(b)
	for b.Loop() {
		time.Sleep(30 * time.Second)
	}
	b.ReportMetric(100*float64(cpu(b)-spent)/float64(time.Since(began)), "%-core")
	b.ReportMetric(float64(after-before)/1e6, "MB")
	b.ReportMetric(0, "ns/op")
}
