// The clients for Go. A line of JSON for each; `restart` asks for a restart of the server.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

var (
	ctx    = context.Background()
	orders = bufio.NewReader(os.Stdin)
)

type command []any

// client is what the checks need of a library.
type client struct {
	name string
	ask  func(command) (any, error)
	many func(atomic bool, commands []command) ([]any, error)
	// cluster asks as a cluster's client; nil if the library has none.
	cluster func(command) (any, error)
}

// inClusterMode says what a cluster's client does: works, error, or waits if neither comes within ten seconds.
func inClusterMode(ask func(command) (any, error), asked command) string {
	if ask == nil {
		return "none"
	}
	done := make(chan string, 1)
	go func() {
		reply, err := ask(asked)
		switch {
		case err != nil:
			done <- "error"
		case fmt.Sprint(cut(reply)) == "[0 100 99 -1]":
			done <- "works"
		default:
			done <- "answers wrongly"
		}
	}()
	select {
	case found := <-done:
		return found
	case <-time.After(10 * time.Second):
		return "waits"
	}
}

func restart() {
	fmt.Println("restart")
	if _, err := orders.ReadString('\n'); err != nil {
		panic(err)
	}
}

// cut drops the last number of ACQUIRE, which is a time.
func cut(reply any) any {
	list, ok := reply.([]any)
	if !ok {
		return reply
	}
	if len(list) == 5 && list[1] == int64(100) {
		return list[:4]
	}
	parts := make([]any, len(list))
	for at, part := range list {
		parts[at] = cut(part)
	}
	return parts
}

func must(reply any, err error) any {
	if err != nil {
		return err.Error()
	}
	return cut(reply)
}

func check(client client) {
	acquire := func(key string) command { return command{"ACQUIRE", "per-user", client.name + "-" + key} }
	many := func(atomic bool, key string) any {
		replies, err := client.many(atomic, []command{acquire(key), acquire(key)})
		return must(any(replies), err)
	}
	found := map[string]any{
		"client":      client.name + " (Go)",
		"acquire":     must(client.ask(acquire("one"))),
		"cl.throttle": must(client.ask(command{"CL.THROTTLE", client.name, 2, 30, 60})),
		"pipeline":    many(false, "pipeline"),
		"transaction": many(true, "transaction"),
	}
	if _, err := client.many(true, []command{acquire("refused"), {"NOSUCH"}}); err == nil {
		found["refused transaction"] = "ran"
	} else {
		left := must(client.ask(command{"PEEK", "per-user", client.name + "-refused", 0}))
		found["refused transaction"] = left
		if list, ok := left.([]any); ok && list[2] == int64(100) {
			found["refused transaction"] = "nothing taken"
		}
	}
	restart()
	for tries := 0; tries < 50; tries++ {
		reply, err := client.ask(acquire("after"))
		found["after a restart"] = must(reply, err)
		if err == nil {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	found["cluster mode by mistake"] = inClusterMode(client.cluster, acquire("cluster"))
	line, err := json.Marshal(found)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func main() {
	address := "127.0.0.1:" + os.Args[1]

	go9 := goredis.NewClient(&goredis.Options{Addr: address})
	check(client{
		name: "redis/go-redis/v9",
		ask:  func(c command) (any, error) { return go9.Do(ctx, c...).Result() },
		cluster: func(c command) (any, error) {
			return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{address}}).Do(ctx, c...).Result()
		},
		many: func(atomic bool, commands []command) ([]any, error) {
			pipe := go9.Pipeline()
			if atomic {
				pipe = go9.TxPipeline()
			}
			asked := make([]*goredis.Cmd, len(commands))
			for at, c := range commands {
				asked[at] = pipe.Do(ctx, c...)
			}
			if _, err := pipe.Exec(ctx); err != nil {
				return nil, err
			}
			replies := make([]any, len(asked))
			for at, one := range asked {
				replies[at] = one.Val()
			}
			return replies, nil
		},
	})

	rue, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}})
	if err != nil {
		panic(err)
	}
	of := func(c command) rueidis.Completed {
		words := make([]string, len(c))
		for at, word := range c {
			words[at] = fmt.Sprint(word)
		}
		return rue.B().Arbitrary(words...).Build()
	}
	check(client{
		name: "redis/rueidis",
		ask:  func(c command) (any, error) { return rue.Do(ctx, of(c)).ToAny() },
		// It finds out by itself.
		cluster: func(c command) (any, error) { return rue.Do(ctx, of(c)).ToAny() },
		many: func(atomic bool, commands []command) ([]any, error) {
			asked := []rueidis.Completed{}
			if atomic {
				asked = append(asked, of(command{"MULTI"}))
			}
			for _, c := range commands {
				asked = append(asked, of(c))
			}
			if atomic {
				asked = append(asked, of(command{"EXEC"}))
			}
			answers := rue.DoMulti(ctx, asked...)
			if atomic {
				list, err := answers[len(answers)-1].ToAny()
				if err != nil {
					return nil, err
				}
				return list.([]any), nil
			}
			replies := []any{}
			for _, answer := range answers {
				reply, err := answer.ToAny()
				if err != nil {
					return nil, err
				}
				replies = append(replies, reply)
			}
			return replies, nil
		},
	})

	pool := redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", address) }}
	do := func(c command) (any, error) {
		conn := pool.Get()
		defer conn.Close()
		return conn.Do(c[0].(string), c[1:]...)
	}
	check(client{
		name: "gomodule/redigo",
		ask:  do,
		many: func(atomic bool, commands []command) ([]any, error) {
			conn := pool.Get()
			defer conn.Close()
			if atomic {
				commands = append([]command{{"MULTI"}}, commands...)
			}
			for _, c := range commands {
				if err := conn.Send(c[0].(string), c[1:]...); err != nil {
					return nil, err
				}
			}
			last := ""
			if atomic {
				last = "EXEC"
			}
			return redis.Values(conn.Do(last))
		},
	})
}
