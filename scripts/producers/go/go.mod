module servers

go 1.25

require (
	github.com/gin-gonic/gin v1.12.0
	github.com/go-chi/chi/v5 v5.5.0
	github.com/gofiber/fiber/v2 v2.52.15
	github.com/gorilla/handlers v1.5.2
	github.com/labstack/echo/v4 v4.16.0
)
