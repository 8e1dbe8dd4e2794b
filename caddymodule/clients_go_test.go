package caddymodule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestOpenAIClientOfGo(t *testing.T) {
	testOpenAIClient(t, func(url string) sdk { return startSDK(t, goClients(t), "openai", url) })
}

func TestAnthropicClientOfGo(t *testing.T) {
	testAnthropicClient(t, func(url string) sdk { return startSDK(t, goClients(t), "anthropic", url) })
}

// goClients builds the program that uses the libraries and returns its path.
func goClients(t *testing.T) string {
	t.Helper()
	program, err := buildGoClients()
	if notFetched := (*goClientsError)(nil); errors.As(err, &notFetched) {
		t.Skipf("left out: Go clients (%v)", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// goClientsError says that the libraries could not be fetched.
type goClientsError struct{ said []byte }

func (m *goClientsError) Error() string {
	first, _, _ := bytes.Cut(bytes.TrimSpace(m.said), []byte("\n"))
	return fmt.Sprintf("no modules: %s", first)
}

// buildGoClients builds the program, which is a module of its own so that nobody who
// builds Caddy with this one gets the versions of libraries that only tests use.
var buildGoClients = sync.OnceValues(func() (string, error) {
	folder, err := filepath.Abs("../build/clients")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	run := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = "testdata/clients/go"
		cmd.Env = append(os.Environ(), "GOWORK=off")
		return cmd.CombinedOutput()
	}
	if said, err := run("mod", "download"); err != nil {
		return "", &goClientsError{said}
	}
	program := filepath.Join(folder, "clients.exe") // Windows starts nothing else
	if said, err := run("build", "-o", program, "."); err != nil {
		return "", fmt.Errorf("go build in testdata/clients/go: %w\n%s", err, said)
	}
	return program, nil
})
