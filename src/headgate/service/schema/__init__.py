"""The interface as tables: what bodies look like (`shapes`), and the OpenAPI document made of them."""
