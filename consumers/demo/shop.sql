-- The database of `rolloutlog demo`: small enough to read, with no two questions that have the same answer by chance.
CREATE TABLE shops (shop_id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL);
CREATE TABLE customers (customer_id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL);
CREATE TABLE orders (
    order_id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers,
    shop_id INTEGER NOT NULL REFERENCES shops,
    amount INTEGER NOT NULL -- euros
);

INSERT INTO shops VALUES
    (1, 'Amber', 'Berlin'), (2, 'Basil', 'Berlin'), (3, 'Cedar', 'Berlin'),
    (4, 'Dahlia', 'Lisbon'), (5, 'Elder', 'Lisbon'),
    (6, 'Fennel', 'Oslo');

INSERT INTO customers VALUES
    (1, 'Ada', 'Berlin'), (2, 'Ben', 'Berlin'), (3, 'Cleo', 'Berlin'), (4, 'Dora', 'Berlin'),
    (5, 'Emil', 'Lisbon'), (6, 'Fay', 'Lisbon'), (7, 'Gus', 'Lisbon'), (8, 'Hugo', 'Lisbon'), (9, 'Ida', 'Lisbon'),
    (10, 'Jon', 'Oslo'), (11, 'Kim', 'Oslo');

INSERT INTO orders VALUES
    (1, 1, 1, 20), (2, 1, 2, 35), (3, 2, 1, 15), (4, 3, 3, 60), (5, 4, 2, 25),
    (6, 5, 4, 80), (7, 6, 4, 10), (8, 6, 5, 45), (9, 7, 5, 30), (10, 8, 4, 55),
    (11, 9, 5, 70), (12, 10, 6, 90), (13, 10, 6, 40), (14, 11, 1, 65);
