// Servers in Go: servers NAME PORT.
package main

import (
	"net/http"
	"os"
	"time"

	"github.com/gin-gonic/gin"
	chi "github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/logger"
	"github.com/gorilla/handlers"
	"github.com/labstack/echo/v4"
	echomiddleware "github.com/labstack/echo/v4/middleware"
)

func pause(path string) {
	if path == "/slow" {
		time.Sleep(5 * time.Second)
	}
}

func hello(w http.ResponseWriter, r *http.Request) {
	pause(r.URL.Path)
	w.Write([]byte("hello"))
}

func main() {
	name, address := os.Args[1], ":"+os.Args[2]
	switch name {
	case "gorilla":
		http.ListenAndServe(address, handlers.CombinedLoggingHandler(os.Stdout, http.HandlerFunc(hello)))
	case "chi":
		router := chi.NewRouter()
		router.Use(middleware.Logger)
		router.HandleFunc("/*", hello)
		http.ListenAndServe(address, router)
	case "echo":
		app := echo.New()
		app.HideBanner = true
		app.HidePort = true
		app.Use(echomiddleware.Logger())
		app.Any("/*", func(c echo.Context) error {
			pause(c.Request().URL.Path)
			return c.String(200, "hello")
		})
		app.Start(address)
	case "gin":
		app := gin.Default()
		app.NoRoute(func(c *gin.Context) {
			pause(c.Request.URL.Path)
			c.String(200, "hello")
		})
		app.Run(address)
	case "fiber":
		app := fiber.New(fiber.Config{DisableStartupMessage: true, Network: "tcp"})
		app.Use(logger.New())
		app.Use(func(c *fiber.Ctx) error {
			pause(c.Path())
			return c.SendString("hello")
		})
		app.Listen(address)
	}
}
